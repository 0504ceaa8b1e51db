"""Pictures: image files, and the images in items."""
