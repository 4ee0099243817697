"""A small, causal driving world: roads, actors, scenarios, an expert driver and cameras."""
