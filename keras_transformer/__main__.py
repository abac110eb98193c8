"""`python -m keras_transformer` runs the command `keras-transformer`."""

from keras_transformer.cli import main

if __name__ == "__main__":
    main()
