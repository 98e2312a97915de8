"""Decoders of transformers made selective: the same object, with a head that selects and a cache that evicts."""
