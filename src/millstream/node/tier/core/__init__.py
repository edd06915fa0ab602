"""The pure part of tiered storage: the formats of objects, and all decisions."""
