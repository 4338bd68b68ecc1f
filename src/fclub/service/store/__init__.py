"""What a node keeps on disk: the only place that speaks SQL."""
