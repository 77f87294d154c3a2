"""The site's sections: titles and pages, in the order of the navigation."""

from __future__ import annotations

SECTIONS: dict[str, dict[str, str]] = {
    "Start": {
        "Boxwright": "index.md",
        "Installing": "install.md",
        "Five minutes": "tour.md",
        "Your data": "data.md",
        "Troubleshooting": "troubleshooting.md",
        "Questions and answers": "faq.md",
        "TensorFlow projects": "migrate_tensorflow.md",
    },
    "Guides": {
        "Choose a model": "choose_a_model.md",
        "A few hundred images": "small_data.md",
        "Weights by name": "weights.md",
        "Fine-tune": "fine_tune.md",
        "Train, resume, many devices": "training.md",
        "Augment": "augmentation.md",
        "Read the doctor": "doctor.md",
        "Evaluate, read a report": "evaluation.md",
        "Images, videos, streams, millions": "predict.md",
        "Try a detector on a page": "playground.md",
        "Export and serve": "deploy.md",
        "Raspberry Pi": "raspberry_pi.md",
        "Frigate": "frigate.md",
        "Triton": "triton.md",
        "In Python": "python.md",
        "With other libraries": "friends.md",
        "Hugging Face hub": "hugging_face.md",
        "Annotation tools": "annotation_tools.md",
        "MLflow": "mlflow.md",
        "GPUs": "gpu.md",
        "Memory": "memory.md",
    },
    "Migrate from": {
        "TensorFlow, the reference": "tensorflow_users.md",
        "torchvision": "migrate_torchvision.md",
        "Detectron2, MMDetection": "migrate_detectron2_mmdetection.md",
    },
    "Models": {
        "All models": "models.md",
        "SSD, EfficientDet": "ssd.md",
        "Faster and Mask R-CNN": "two_stage.md",
        "Context R-CNN": "context_rcnn.md",
        "CenterNet": "centernet.md",
        "RefineDet": "refinedet.md",
        "SRN": "srn.md",
        "AlignDet": "align_det.md",
        "D-FINE": "d_fine.md",
    },
    "Reference": {
        "Command line": "command_line.md",
        "Configurations": "configuration.md",
        "Every field": "fields.md",
        "Python": "python_reference.md",
        "Events": "events.md",
        "File formats": "file_formats.md",
        "Error messages": "error_messages.md",
    },
    "Explain": {
        "Parity with TensorFlow": "parity.md",
        "Reliability": "reliability.md",
        "How cost grows": "scaling.md",
        "Architecture": "architecture.md",
        "Add a detector": "add_a_detector.md",
    },
    "Project": {
        "Changes": "changelog.md",
        "Versions": "versioning.md",
        "Security": "security.md",
        "Benchmarks": "benchmarks.md",
        "Contributing": "contributing.md",
        "Conduct": "conduct.md",
    },
}

# Pages that stand elsewhere in the repository, by their names in the site.
ELSEWHERE = {
    "index.md": "README.md",
    "changelog.md": "CHANGELOG.md",
    "security.md": "SECURITY.md",
    "contributing.md": "CONTRIBUTING.md",
    "conduct.md": "CODE_OF_CONDUCT.md",
    "benchmarks.md": "benchmarks/README.md",
    "parity.md": "tests/golden/README.md",
}
