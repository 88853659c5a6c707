"""`copyspec-eval audit`: whether two engines differ by rounding, or one of them is broken."""
