"""Keras on torch: `model.fit` with arrays, a validation set and a callback."""

import os

os.environ["KERAS_BACKEND"] = "torch"
import keras  # noqa: E402
import numpy as np  # noqa: E402
from digest import digest  # noqa: E402

keras.utils.set_random_seed(0)
x, y = np.random.rand(240, 16).astype("float32"), np.random.randint(4, size=240)
model = keras.Sequential([keras.Input((16,)), keras.layers.Dense(32, activation="relu"), keras.layers.Dense(4)])
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(optimizer=keras.optimizers.Adam(1e-3), loss=loss, metrics=["accuracy"])
model.fit(x, y, batch_size=12, epochs=3, validation_split=0.2, verbose=0, callbacks=[keras.callbacks.TerminateOnNaN()])
digest(model)
