#!/bin/sh
# Builds the images, with whichever of docker, podman and buildah is here and answers: `make images` calls it.
#
#   docker/build.sh                  broker, operator and spark, as penstock-broker:VERSION and so on
#   docker/build.sh broker           one of them
#
# IMAGE_PREFIX (default: localhost/)  what stands before the names, such as registry.example.com/team/
# IMAGE_TAG (default: the version of the broker's pyproject.toml)
# BASE_IMAGE (default: as the Dockerfiles say) another image with Python 3.11 or newer
# SPARK_BASE_IMAGE (default: BASE_IMAGE) another one for spark, which may have Java
# BUILD_WITH (default: found) docker, podman, buildah, or a script that takes NAME DIR OPTIONS...
set -eu
cd "$(dirname "$0")/.."

version=$(sed -n 's/^version = "\(.*\)"/\1/p' broker/pyproject.toml)
prefix=${IMAGE_PREFIX-localhost/}
tag=${IMAGE_TAG:-$version}
revision=$(git rev-parse --short HEAD 2>/dev/null || echo unknown)

if [ -z "${BUILD_WITH:-}" ]; then
  for tool in docker podman buildah; do
    # A client whose daemon is away is as good as none.
    if command -v "$tool" >/dev/null 2>&1 && "$tool" info >/dev/null 2>&1; then BUILD_WITH=$tool; break; fi
  done
fi
[ -n "${BUILD_WITH:-}" ] || { echo "images: none of docker, podman and buildah is here and answers" >&2; exit 1; }

build() { # NAME DOCKERFILE OPTIONS...
  name=$1 file=$2
  shift 2
  [ -z "${BASE_IMAGE:-}" ] || set -- --build-arg "BASE_IMAGE=$BASE_IMAGE" "$@"
  case $BUILD_WITH in
    docker | podman) "$BUILD_WITH" build --file "$file" "$@" --tag "$name" . ;;
    # The OCI format has no place for HEALTHCHECK.
    buildah) buildah bud --layers --format docker --file "$file" "$@" --tag "$name" . ;;
    *)
      # A machine whose registries pip finds by a file has it during the build, and only then.
      [ ! -f /etc/pip.conf ] || set -- --volume /etc/pip.conf:/etc/pip.conf:ro "$@"
      "$BUILD_WITH" "$name" . --format docker --file "$file" "$@"
      ;;
  esac
  echo "built $name"
}

given=${BASE_IMAGE:-}
for image in ${*:-broker operator spark}; do
  BASE_IMAGE=$given
  [ "$image" != spark ] || BASE_IMAGE=${SPARK_BASE_IMAGE:-$given}
  case $image in
    client) file=tests/e2e/kubernetes/client/Dockerfile ;; # other people's clients, for the end-to-end tests
    *) file=docker/$image/Dockerfile ;;
  esac
  build "${prefix}penstock-$image:$tag" "$file" \
    --build-arg "VERSION=$version" --build-arg "REVISION=$revision"
done
