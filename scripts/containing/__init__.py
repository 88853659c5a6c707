"""What the hostile programs of the tests achieve at each level of containment."""
