"""Long texts and questions about them: RULER, OOLONG, BrowseComp-Plus."""
