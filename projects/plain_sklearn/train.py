"""A scikit-learn classifier under MLflow's autologging, as found in any repository.

It knows nothing of a scheduler: it is queued, watched and tried again as it is.
"""

import argparse

import mlflow
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=0.001)
    parser.add_argument("--epochs", type=int, default=50)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    mlflow.sklearn.autolog(log_models=False)
    images, labels = load_digits(return_X_y=True)
    train_images, test_images, train_labels, test_labels = train_test_split(
        images, labels, test_size=0.2, random_state=args.seed
    )
    model = make_pipeline(
        StandardScaler(),
        MLPClassifier(
            (args.hidden,),
            batch_size=args.batch_size,
            learning_rate_init=args.lr,
            max_iter=args.epochs,
            random_state=args.seed,
        ),
    )
    with mlflow.start_run():
        model.fit(train_images, train_labels)
        accuracy = model.score(test_images, test_labels)
        mlflow.log_metric("test_accuracy", accuracy)
    print(f"test accuracy {accuracy:.4f}")


if __name__ == "__main__":
    main()
