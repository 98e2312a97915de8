"""The backends, each an implementation of one call of attention, and the rule that chooses among them."""
