"""How the atlas is made: facts of GeoNames and mendeleev -> passages and questions, the same bytes every time.

``facts_*`` read the sources, ``splits`` keeps entities apart, ``passages`` and ``ask`` write the text. Only
``data_gen/build_atlas.py`` uses this; reading the finished atlas needs none of it.
"""
