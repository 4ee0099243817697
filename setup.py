"""The Python distribution without messages, for machines without ROS (training, evaluation): pip install ."""

from setuptools import find_packages, setup

setup(
    name="rsd_planner",
    version="0.1.0",
    description="A driving planner that writes why it drives so, behind a lossless two-reasoner decoder.",
    license="Apache-2.0",
    python_requires=">=3.11",
    packages=find_packages(include=["rsd_planner", "rsd_planner.*"]),
    # Exact versions of the tested set are in requirements/.
    install_requires=[
        "accelerate>=1.15",
        "huggingface_hub>=2.4",
        "jinja2>=3.1",
        "matplotlib>=3.11",
        "numpy>=1.26",
        "opencv-python-headless>=5.0",
        "osqp>=1.1",
        "panda3d>=1.10.16",
        "plotly>=7.1",
        "pyarrow>=26.0",
        "pyyaml>=6.0",
        "rosbags>=0.11.9",
        "safetensors>=0.8",
        "scipy>=1.17",
        "tokenizers>=0.23",
        "tensorboardX>=2.6",
        "torch>=2.13",
        "tqdm>=4.70",
        # The decoder layers are called directly: newer versions have to be tried first.
        "transformers==5.24.0",
    ],
    extras_require={
        "cluster": ["ray>=2.60"],
        "convert": ["physical-ai-av>=0.2.3"],
        "rerun": ["rerun-sdk>=0.41"],
    },
    package_data={"rsd_planner.evaluation": ["*.jinja"]},
    entry_points={"console_scripts": ["rsd-planner = rsd_planner.cli:main"]},
)
