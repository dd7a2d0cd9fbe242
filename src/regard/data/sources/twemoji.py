"""Twemoji: the emoji of Twitter as 3,786 pictures of 64 x 64 pixels, skin tones included.

From the npm package `emoji-datasource-twitter` 16.0.0, a PNG file for each; transparent parts become white.
"""

from regard.data.imagetext.emoji import pack_pictures
from regard.data.origins.npm import NpmPackage
from regard.data.origins.source import Source

SOURCE = Source(
    name="twemoji",
    title="3,786 emoji in the style of Twitter, 64 x 64 pixels",
    license="Creative Commons Attribution 4.0",
    terms="the README of the package puts the pictures of Twitter under CC BY 4.0; its own code is MIT",
    file="twemoji.safetensors",
    sha256="1ea09bef86090d629942cfab2496b2eed0d44355afa838cb7463dd77b5c1c999",
    size=46_599_360,
    origin=NpmPackage(
        package="emoji-datasource-twitter",
        version="16.0.0",
        sha256="f64a530c63bca463bd8317fdc4615ce63a53a0c65018e4ce2d848aaba7a28877",
        members=("img/twitter/64/*.png",),
        assemble=pack_pictures,
    ),
    labels="emoji",
)
