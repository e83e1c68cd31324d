"""Real images in: sources, loaders, augmentation."""
