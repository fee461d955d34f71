"""Keys and untrusted HTTP replies."""
