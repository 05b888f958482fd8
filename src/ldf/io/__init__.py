"""Files and text: atomic writes, safetensors, CSV and Parquet, public data with checksums."""
