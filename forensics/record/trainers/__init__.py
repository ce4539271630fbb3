"""Recording under the trainers that people use: Hugging Face, Accelerate, Lightning."""
