//! hearth-mlx
