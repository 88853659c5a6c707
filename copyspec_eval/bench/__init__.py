"""Speed of decoding on recorded answers, side by side with transformers' own."""
