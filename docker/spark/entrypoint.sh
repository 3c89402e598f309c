#!/bin/bash
# Entrypoint of the image. Spark on Kubernetes passes one of the first two to the pods that it creates; any other
# command, such as `penstock-spark run job.yaml`, runs unchanged.
#
#   driver SUBMIT-OPTIONS...   the driver of `spark-submit --deploy-mode cluster`, in client mode in its own pod
#   executor                   an executor, configured by the SPARK_* variables that the driver sets
#   COMMAND ARGUMENTS...       that command
#
# tini is process 1: it forwards signals, and reaps the Python workers that a daemon leaves behind.
set -euo pipefail

fail() {
  echo "entrypoint: $*" >&2
  exit 64
}

# Spark unpacks files into its working directory; /tmp is writable if the root file system is read-only.
[ -w . ] || cd "$(mktemp -d /tmp/spark-work.XXXXXX)"

driver() {
  : "${SPARK_DRIVER_BIND_ADDRESS:?spark-submit sets it in the driver pod}"
  command=("$SPARK_HOME/bin/spark-submit" --deploy-mode client
    --conf "spark.driver.bindAddress=$SPARK_DRIVER_BIND_ADDRESS"
    --conf "spark.executorEnv.SPARK_DRIVER_POD_IP=$SPARK_DRIVER_BIND_ADDRESS" "$@")
}

executor() {
  [ $# -eq 0 ] || fail "executor takes no arguments, but was given: $*"
  local name missing=()
  for name in DRIVER_URL EXECUTOR_ID EXECUTOR_CORES EXECUTOR_MEMORY APPLICATION_ID EXECUTOR_POD_IP EXECUTOR_POD_NAME \
    RESOURCE_PROFILE_ID; do
    name=SPARK_$name
    [ -n "${!name:-}" ] || missing+=("$name")
  done
  [ ${#missing[@]} -eq 0 ] || fail "not set: ${missing[*]}. Only a driver starts executors"

  # JVM options may contain spaces, so each has its own variable, numbered from 0.
  local options=() number=0
  name=SPARK_JAVA_OPT_0
  while [ -n "${!name+set}" ]; do
    options+=("${!name}")
    number=$((number + 1))
    name=SPARK_JAVA_OPT_$number
  done

  # The driver's order: configuration, the job's additions, Spark, Hadoop's configuration.
  local classpath=${SPARK_CONF_DIR:-$SPARK_HOME/conf}
  classpath+=${SPARK_CLASSPATH:+:$SPARK_CLASSPATH}
  classpath+=":$SPARK_HOME/jars/*"
  classpath+=${HADOOP_CONF_DIR:+:$HADOOP_CONF_DIR}
  classpath+=${SPARK_DIST_CLASSPATH:+:$SPARK_DIST_CLASSPATH}

  command=("${JAVA_HOME:+$JAVA_HOME/bin/}java" "${options[@]}"
    "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY" -cp "$classpath"
    org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend
    --driver-url "$SPARK_DRIVER_URL"
    --executor-id "$SPARK_EXECUTOR_ID"
    --cores "$SPARK_EXECUTOR_CORES"
    --app-id "$SPARK_APPLICATION_ID"
    --hostname "$SPARK_EXECUTOR_POD_IP"
    --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID"
    --podName "$SPARK_EXECUTOR_POD_NAME")
}

[ $# -gt 0 ] || fail "nothing to run: driver, executor, or a command such as penstock-spark run /etc/penstock-spark/job.yaml"
case $1 in
  driver | executor)
    : "${SPARK_HOME:?the directory of Spark}"
    "$@"
    ;;
  *) command=("$@") ;;
esac
exec tini -s -- "${command[@]}"
