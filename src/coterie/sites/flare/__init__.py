"""The part that NVIDIA FLARE runs at the server and at the sites; this folder alone imports it."""
