"""The campaign of damage: files, values, configurations, gate folders, stores and servers, for every script."""
