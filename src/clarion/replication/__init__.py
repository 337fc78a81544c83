"""One partition on one broker: leadership, epochs, watermark, producer state, group commit."""
