"""Plain decoding beside ways of drafting: their answers to each request, and where these differ."""
