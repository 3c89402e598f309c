#!/bin/sh
# A cluster of kind's with Penstock in it: `make kind-up`. Needs docker, kind, kubectl and helm.
#
#   docker/kind-up.sh                       images are built and loaded, the chart is installed, and its notes shown
#   docker/kind-up.sh --images-only [NAME]  without the chart, and with one more image: for the end-to-end tests
#
# KIND_CLUSTER (default: penstock) names the cluster; `kind delete cluster --name penstock` removes it.
set -eu
cd "$(dirname "$0")/.."
cluster=${KIND_CLUSTER:-penstock}
for program in docker kind kubectl helm; do
  command -v "$program" >/dev/null || { echo "kind-up: $program is not here" >&2; exit 2; }
done

images="broker operator"
if [ "${1:-}" = --images-only ]; then
  shift
  images="$images $*"
fi
kind get clusters | grep -qx "$cluster" || kind create cluster --name "$cluster" --wait 120s
# shellcheck disable=SC2086
BUILD_WITH=docker IMAGE_TAG=kind docker/build.sh $images
for image in $images; do
  kind load docker-image --name "$cluster" "localhost/penstock-$image:kind"
done
[ "$images" = "broker operator" ] || exit 0
helm upgrade --install penstock charts/penstock --kube-context "kind-$cluster" --namespace penstock --create-namespace \
  --set operator.image.tag=kind --set broker.image.tag=kind --timeout 5m
