"""BrowseComp-Plus: questions whose answers need several of many documents, published or made up.

Source: Chen et al., "BrowseComp-Plus: A More Fair and Transparent Evaluation Benchmark of Deep-Research Agent" (2025),
github.com/texttron/BrowseComp-Plus; rows of Tevatron/browsecomp-plus on Hugging Face. The code is koderz' own.
"""
