"""What `import boxwright` offers: models that take pictures, results, training and evaluation in one call."""
