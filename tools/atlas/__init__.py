"""Construction of the atlas: facts of GeoNames and mendeleev -> passages and questions, the same bytes every time.

The sources are read as facts and entities, entities are split, then passages and questions are written. Only
``tools/build_atlas.py`` uses this; reading the finished atlas needs none of it.
"""
