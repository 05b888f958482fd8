"""Files and text: whole files, safetensors, CSV and Parquet, public data with checksums."""
