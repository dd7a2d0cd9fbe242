"""Noto Emoji: the emoji of Google, pictures of 64 x 64 pixels in another style than Twemoji.

From the npm package `emoji-datasource-google` 16.0.0, a PNG file for each; transparent parts become white.
"""

from regard.data.imagetext.emoji import pack_pictures
from regard.data.origins.npm import NpmPackage
from regard.data.origins.source import Source

SOURCE = Source(
    name="noto-emoji",
    title="emoji in the style of Google, 64 x 64 pixels",
    license="Apache License 2.0",
    terms="the README of the package puts the pictures of Google (Noto) under the Apache License 2.0; its code is MIT",
    file="noto-emoji.safetensors",
    sha256="fdfba6b735405eef885975cb0a01ec2b35a9e7147e4df7faca64ebf894da3f25",
    size=46_599_360,
    origin=NpmPackage(
        package="emoji-datasource-google",
        version="16.0.0",
        sha256="fb5fd131b362aab7a55542d2a147a79708cce0a8b1c1bbacd470172708b5c438",
        members=("img/google/64/*.png",),
        assemble=pack_pictures,
    ),
    labels="emoji",
)
