"""Handwritten digits by TensorFlow's MultiWorkerMirroredStrategy. Nothing in it knows of elastrain: the cluster is in
TF_CONFIG, and BackupAndRestore takes up the last epoch.
"""

import argparse
import time

import tensorflow as tf
from sklearn.datasets import load_digits


class Pace(tf.keras.callbacks.Callback):
    def __init__(self, seconds: float, workers: int) -> None:
        super().__init__()
        self.seconds, self.workers = seconds, workers

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        print(f"epoch {epoch} by {self.workers} workers: loss {(logs or {})['loss']:.4f}", flush=True)
        time.sleep(self.seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--epoch-seconds", type=float, default=0.0)
    parser.add_argument("--backup", default="backup", help="folder on a volume that all workers share")
    options = parser.parse_args()
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    workers = strategy.num_replicas_in_sync
    data = load_digits()
    images, labels = (data.images / 16.0).astype("float32"), data.target
    train = tf.data.Dataset.from_tensor_slices((images, labels)).shuffle(2000, seed=0).batch(64, drop_remainder=True)
    with strategy.scope():
        model = tf.keras.Sequential(
            [
                tf.keras.layers.Flatten(input_shape=(8, 8)),
                tf.keras.layers.Dense(64, "relu"),
                tf.keras.layers.Dense(10),
            ]
        )
        model.compile(
            optimizer=tf.keras.optimizers.Adam(2e-3),
            loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
    backup = tf.keras.callbacks.BackupAndRestore(options.backup)
    model.fit(train, epochs=options.epochs, verbose=0, callbacks=[backup, Pace(options.epoch_seconds, workers)])


if __name__ == "__main__":
    main()
