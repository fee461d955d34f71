"""Text tables and SVG figures."""
