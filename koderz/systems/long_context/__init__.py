"""The system `long_context`: long texts and questions about them in RULER, OOLONG and BrowseComp-Plus."""
