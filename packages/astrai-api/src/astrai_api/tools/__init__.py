"""Tool calls: the formats that models write them in, parsed as they come and enforced."""
