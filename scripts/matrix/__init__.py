"""Every architecture that transformers has, decoded with drafts: who is served, and who is not."""
