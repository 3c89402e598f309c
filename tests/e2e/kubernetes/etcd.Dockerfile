# The local cluster's image of etcd with etcdutl, which released images of etcd have, for restores.
ARG ETCD_IMAGE
FROM ${ETCD_IMAGE}
COPY etcdutl /usr/local/bin/etcdutl
