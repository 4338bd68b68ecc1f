"""The algorithm as printed: clusters by edge deletion, phases, a determinant trigger, tree noise."""
