#!/usr/bin/env bash
# Runs the tests against a Kubernetes cluster: `make e2e` and `make e2e-full` call it, arguments go to pytest.
#
#   CLUSTER=local     the cluster of the scripts in the folder LOCAL_CLUSTER: `up`, `image`, `etcd-image` and `exec-in`
#   otherwise         the cluster that KUBECONFIG names; without it, one of kind's, where docker and kind are
#
# With a cluster that is there: E2E_IMAGE_PREFIX and E2E_IMAGE_TAG name images that its nodes can pull (of broker,
# operator, Spark and clients: IMAGE_PREFIX=... docker/build.sh broker operator spark client), E2E_ETCD_IMAGE an etcd.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../../.."
# A test must not find its own checkout's settings.
unset PENSTOCK_BOOTSTRAP

if [ "${CLUSTER:-}" = local ]; then
  [ -x "${LOCAL_CLUSTER:-}/up" ] || {
    echo "e2e: CLUSTER=local needs LOCAL_CLUSTER, the folder with up, image, etcd-image and exec-in" >&2; exit 2; }
  LOCAL_CLUSTER=$(cd "$LOCAL_CLUSTER" && pwd)
  eval "$("$LOCAL_CLUSTER/up")"
  "$LOCAL_CLUSTER/base" >/dev/null
  # A tag of its own for each state of the tree: a pod never runs an image of an earlier one.
  tag=e2e-$(cat docker/*/* docker/*.txt tools/build.txt crds/*.yaml {broker,operator,spark_jobs}/pyproject.toml \
    $(find broker/penstock operator/penstock_operator spark_jobs/penstock_spark spark_jobs/pyspark_penstock \
      -type f ! -name '*.pyc' | LC_ALL=C sort) | sha256sum | cut -c1-12)
  images="broker operator"
  # The image of Spark is large: who asks for other files alone does without it.
  case " $* " in *test_spark*) images="$images spark" ;; *tests/*) ;; *) images="$images spark" ;; esac
  for image in $images; do
    # Images are loaded onto the nodes that there are.
    built=${K8S_RUN:-$HOME/.cache/penstock-k8s/run}/built-$image-$tag-$(kubectl get nodes --output name | wc -l)
    [ ! -f "$built" ] || continue
    base=
    [ "$image" != spark ] || base=$("$LOCAL_CLUSTER/base" java | tail -n 1)
    BUILD_WITH=$LOCAL_CLUSTER/image IMAGE_TAG=$tag SPARK_BASE_IMAGE=$base docker/build.sh "$image"
    touch "$built"
  done
  export E2E_IMAGE_PREFIX=localhost/ E2E_IMAGE_TAG=$tag E2E_EXEC_IN=$LOCAL_CLUSTER/exec-in
  E2E_ETCD_IMAGE=$("$LOCAL_CLUSTER/etcd-image" | tail -n 1)
  export E2E_ETCD_IMAGE LOCAL_CLUSTER
elif [ -n "${KUBECONFIG:-}" ]; then
  : "${E2E_IMAGE_TAG:?names the tag of images that the cluster can pull (see run.sh)}"
  export E2E_CLIENT_IMAGE=${E2E_CLIENT_IMAGE:-${E2E_IMAGE_PREFIX-localhost/}penstock-client:$E2E_IMAGE_TAG}
elif command -v kind >/dev/null && docker info >/dev/null 2>&1; then
  docker/kind-up.sh --images-only client spark
  KUBECONFIG=$(mktemp)
  kind get kubeconfig --name "${KIND_CLUSTER:-penstock}" > "$KUBECONFIG"
  export KUBECONFIG E2E_IMAGE_PREFIX=localhost/ E2E_IMAGE_TAG=kind E2E_CLIENT_IMAGE=localhost/penstock-client:kind
else
  echo "e2e: no cluster: set KUBECONFIG, or CLUSTER=local, or install docker and kind" >&2
  exit 2
fi
command -v helm >/dev/null || { echo "e2e: no helm on the PATH" >&2; exit 2; }

# Files and folders among the arguments choose what runs; otherwise all does.
case " $* " in *" tests/"*) ;; *) set -- tests/e2e/kubernetes "$@" ;; esac
exec .venv/bin/pytest -v -p no:cacheprovider --timeout 900 "$@"
