"""specedu comes before transformers: both import triton, and specedu picks its interpreter."""

import specedu  # noqa: F401
