"""Fluent Emoji: the emoji of Microsoft, pictures that look like little bodies, in 64 x 64 pixels.

From the npm package `@lobehub/fluent-emoji-3d` 1.1.0, a WebP file for each; transparent parts become white.
"""

from regard.data.imagetext.emoji import pack_pictures
from regard.data.origins.npm import NpmPackage
from regard.data.origins.source import Source

SOURCE = Source(
    name="fluent-emoji",
    title="3,389 emoji in the style of Microsoft, 64 x 64 pixels",
    license="MIT",
    terms="the README and package.json of the package: MIT, as Microsoft's own",
    file="fluent-emoji.safetensors",
    sha256="77194423fbd5fbbf615eab1f1fdff5d9a0289805aa0a0c3446d81c8c8a4fa3e6",
    size=41_704_416,
    origin=NpmPackage(
        package="@lobehub/fluent-emoji-3d",
        version="1.1.0",
        sha256="c1bb7eee7de090205a232518a9ab4adb3df458bfbe8a1f78232991194c8b2e58",
        members=("assets/*.webp",),
        assemble=pack_pictures,
    ),
    labels="emoji",
)
