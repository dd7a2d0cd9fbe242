"""Ring attention: the tokens of a row are shared by several processes, or read block by block by one."""
