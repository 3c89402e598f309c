{{/* Names and labels. */}}
{{- define "job.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimAll "-" -}}
{{- end -}}

{{/* Also a Service name: no dots, no leading digit. */}}
{{- define "job.fullname" -}}
{{- $name := default (.Release.Name | replace "." "-") .Values.fullnameOverride -}}
{{- regexReplaceAll "^([0-9])" $name "job-${1}" | trunc 40 | trimAll "-" -}}
{{- end -}}

{{- define "job.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "job.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* A digest identifies the image, so the tag is omitted. */}}
{{- define "job.image" -}}
{{- $image := .Values.image -}}
{{- if $image.digest -}}
{{- printf "%s@%s" $image.repository $image.digest -}}
{{- else -}}
{{- printf "%s:%s" $image.repository (default .Chart.AppVersion $image.tag) -}}
{{- end -}}
{{- end -}}

{{/* Input (dict "root" $ "component" "driver"): the selector labels of pods, which are immutable.
     Names are quoted everywhere, because YAML could parse them as numbers or booleans. */}}
{{- define "job.selector" -}}
app.kubernetes.io/name: {{ include "job.name" .root | quote }}
app.kubernetes.io/instance: {{ .root.Release.Name | quote }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "job.labels" -}}
{{ include "job.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- end -}}

{{/* Security contexts of pods and containers for the restricted Pod Security profile. */}}
{{- define "job.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "job.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{- define "job.checkpointPath" -}}/var/lib/penstock-spark/checkpoint{{- end -}}

{{/* The default `mountPath` of a User, to which the files of its Secret refer. */}}
{{- define "job.userPath" -}}/etc/penstock/user{{- end -}}

{{- define "job.claimName" -}}
{{- default (printf "%s-checkpoint" (include "job.fullname" .)) .Values.checkpoint.existingClaim -}}
{{- end -}}

{{/* The job file: the values merged over the chart's defaults. False and 0 override a default (`merge` would ignore them);
     a key without a value does not. */}}
{{- define "job.yaml" -}}
{{- $known := dict "name" (include "job.fullname" .) "checkpoint" (include "job.checkpointPath" .) "spark" (include "job.spark" . | fromYaml) -}}
{{- if .Values.metrics.enabled -}}
{{- $_ := set $known "metrics" (dict "host" "0.0.0.0" "port" (int .Values.metrics.port)) -}}
{{- end -}}
{{- $said := deepCopy .Values.job -}}
{{- range $part := list $said $said.spark $said.metrics -}}
{{- if kindIs "map" $part -}}
{{- range $key, $value := $part -}}
{{- if kindIs "invalid" $value -}}
{{- $_ := unset $part $key -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toYaml (mergeOverwrite $known $said) -}}
{{- end -}}

{{/* Spark settings. The driver's environment has the address of its pod. */}}
{{- define "job.spark" -}}
{{- $v := .Values -}}
{{- $conf := dict "spark.driver.memory" $v.driver.memory -}}
{{- if eq (int $v.executors.instances) 0 -}}
{{- $_ := set $conf "spark.master" (printf "local[%d]" (int $v.executors.cores)) -}}
{{- else -}}
{{- $_ := mergeOverwrite $conf (dict
  "spark.master" "k8s://https://kubernetes.default.svc"
  "spark.submit.deployMode" "client"
  "spark.driver.port" "7078"
  "spark.driver.blockManager.port" "7079"
  "spark.blockManager.port" "7079"
  "spark.kubernetes.namespace" .Release.Namespace
  "spark.kubernetes.driver.pod.name" (printf "%s-0" (include "job.fullname" .))
  "spark.kubernetes.container.image" (include "job.image" .)
  "spark.kubernetes.container.image.pullPolicy" $v.image.pullPolicy
  "spark.kubernetes.executor.podTemplateFile" "/etc/penstock-spark/executor.yaml"
  "spark.kubernetes.executor.podTemplateContainerName" "executor"
  "spark.kubernetes.executor.disableConfigMap" "true"
  "spark.kubernetes.driver.service.deleteOnTermination" "false"
  "spark.kubernetes.driver.ownPersistentVolumeClaim" "false"
  "spark.executor.instances" (toString $v.executors.instances)
  "spark.executor.cores" (toString $v.executors.cores)
  "spark.executor.memory" $v.executors.memory
  "spark.executor.memoryOverhead" $v.executors.memoryOverhead
  "spark.kubernetes.executor.request.cores" (default (toString $v.executors.cores) $v.executors.cpuRequest)
  "spark.decommission.enabled" "true"
  "spark.storage.decommission.enabled" "true"
  "spark.storage.decommission.rddBlocks.enabled" "true"
  "spark.storage.decommission.shuffleBlocks.enabled" "true"
  "spark.executor.decommission.forceKillTimeout" (printf "%ds" (int $v.executors.terminationGracePeriodSeconds))
) -}}
{{- with $v.executors.cpuLimit -}}
{{- $_ := set $conf "spark.kubernetes.executor.limit.cores" . -}}
{{- end -}}
{{- end -}}
{{- toYaml $conf -}}
{{- end -}}

{{/* The executor pod template; Spark adds name, image, arguments, resources, environment and scratch volumes. */}}
{{- define "job.executor" -}}
{{- $v := .Values -}}
{{- $labels := dict "root" . "component" "executor" -}}
apiVersion: v1
kind: Pod
metadata:
  labels:
    {{- include "job.selector" $labels | nindent 4 }}
    {{- with $v.executors.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with $v.executors.podAnnotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  enableServiceLinks: false
  automountServiceAccountToken: false
  serviceAccountName: {{ include "job.serviceAccountName" . | quote }}
  terminationGracePeriodSeconds: {{ $v.executors.terminationGracePeriodSeconds }}
  {{- with $v.executors.priorityClassName }}
  priorityClassName: {{ . | quote }}
  {{- end }}
  {{- with $v.imagePullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  securityContext:
    {{- include "job.podSecurity" . | nindent 4 }}
  affinity:
    {{- if $v.executors.affinity }}
    {{- toYaml $v.executors.affinity | nindent 4 }}
    {{- else if and $v.checkpoint.inExecutors (eq $v.checkpoint.storage.accessMode "ReadWriteOnce") }}
    # A ReadWriteOnce volume can only be mounted on one node: the driver's.
    podAffinity:
      requiredDuringSchedulingIgnoredDuringExecution:
        - topologyKey: kubernetes.io/hostname
          labelSelector:
            matchLabels:
              {{- include "job.selector" (dict "root" . "component" "driver") | nindent 14 }}
    {{- else }}
    podAntiAffinity:
      preferredDuringSchedulingIgnoredDuringExecution:
        - weight: 100
          podAffinityTerm:
            topologyKey: kubernetes.io/hostname
            labelSelector:
              matchLabels:
                {{- include "job.selector" $labels | nindent 16 }}
    {{- end }}
  {{- with $v.executors.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $v.executors.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  containers:
    - name: executor
      image: {{ include "job.image" . | quote }}
      securityContext:
        {{- include "job.containerSecurity" . | nindent 8 }}
      {{- with $v.env }}
      env:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      volumeMounts:
        - {name: tmp, mountPath: /tmp}
        {{- if $v.checkpoint.inExecutors }}
        - {name: checkpoint, mountPath: {{ include "job.checkpointPath" . }}}
        {{- end }}
        {{- if $v.userSecret }}
        - {name: user, mountPath: {{ include "job.userPath" . }}, readOnly: true}
        {{- end }}
        {{- with $v.volumeMounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
  volumes:
    - {name: tmp, emptyDir: {}}
    {{- if $v.checkpoint.inExecutors }}
    - name: checkpoint
      persistentVolumeClaim: {claimName: {{ include "job.claimName" . | quote }}}
    {{- end }}
    {{- with $v.userSecret }}
    - name: user
      secret: {secretName: {{ . | quote }}, defaultMode: 0440}
    {{- end }}
    {{- with $v.volumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end -}}

{{/* Input (dict "path" "" "value" .Values): fails for a number that Helm may have rounded. Helm parses numbers of a values
     file as 64-bit floats, which cannot represent all integers from 2^53 on. */}}
{{- define "job.checkNumbers" -}}
{{- $path := .path -}}
{{- if kindIs "map" .value -}}
{{- range $key, $value := .value -}}
{{- include "job.checkNumbers" (dict "path" (trimPrefix "." (printf "%s.%s" $path $key)) "value" $value) -}}
{{- end -}}
{{- else if kindIs "slice" .value -}}
{{- range $index, $value := .value -}}
{{- include "job.checkNumbers" (dict "path" (printf "%s[%d]" $path $index) "value" $value) -}}
{{- end -}}
{{- else if kindIs "float64" .value -}}
{{- if or (ge .value 9007199254740992.0) (le .value -9007199254740992.0) -}}
{{- fail (printf "%s: a number of about %s loses precision, because Helm parses numbers as 64-bit floats; quote it, such as \"9223372036854775807\"" $path (toJson .value)) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Checks that the values schema cannot express. `penstock-spark` reports parts that are not mappings, with their line. */}}
{{- define "job.check" -}}
{{- include "job.checkNumbers" (dict "path" "" "value" .Values) -}}
{{- $job := .Values.job -}}
{{- $once := and (kindIs "map" $job.trigger) (get (default dict $job.trigger) "once") -}}
{{- if not $job.kind -}}
{{- fail "job.kind is missing: `job` must be a job as for `penstock-spark run`; `penstock-spark init archive` prints an example" -}}
{{- end -}}
{{- if or (has $job.kind (list "audit" "backfill" "dlq-replay")) $once -}}
{{- fail (printf "a job of kind %s%s ends by itself, and this chart would restart it endlessly: run it as a Kubernetes Job or CronJob (see the README)" $job.kind (ternary " with trigger.once" "" (eq (toString $once) "true"))) -}}
{{- end -}}
{{- if and (has $job.kind (list "aggregate" "dedup")) (gt (int .Values.executors.instances) 0) (not .Values.checkpoint.inExecutors) (not (contains "://" (toString (default "" $job.checkpoint)))) -}}
{{- fail (printf "a job of kind %s is stateful, and executors write the state below the checkpoint: set checkpoint.inExecutors=true (with checkpoint.storage.accessMode=ReadWriteMany for executors on several nodes), or executors.instances=0" $job.kind) -}}
{{- end -}}
{{- if and .Values.checkpoint.inExecutors (gt (int .Values.executors.instances) 0) (eq .Values.checkpoint.storage.accessMode "ReadWriteOncePod") -}}
{{- fail "checkpoint.storage.accessMode=ReadWriteOncePod only allows the driver to mount the volume: with checkpoint.inExecutors=true, set ReadWriteOnce or ReadWriteMany" -}}
{{- end -}}
{{- if and (not .Values.serviceAccount.create) (not .Values.serviceAccount.name) (gt (int .Values.executors.instances) 0) -}}
{{- fail "serviceAccount.create=false requires serviceAccount.name: otherwise all pods with the account `default` would have the driver's permissions" -}}
{{- end -}}
{{- if not .Values.checkpoint.existingClaim -}}
{{- with lookup "v1" "PersistentVolumeClaim" .Release.Namespace (include "job.claimName" .) -}}
{{- include "job.checkClaim" (dict "storage" $.Values.checkpoint.storage "there" .) -}}
{{- end -}}
{{- end -}}
{{- if .Values.metrics.enabled -}}
{{- $metrics := (include "job.yaml" . | fromYaml).metrics -}}
{{- if and (kindIs "map" $metrics) (ne (int (get (default dict $metrics) "port")) (int .Values.metrics.port)) -}}
{{- fail (printf "job.metrics.port=%v differs from metrics.port=%v, which the probe and the Service use: set only metrics.port" $metrics.port .Values.metrics.port) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Input (dict "storage" VALUES "there" CLAIM): fails for changes that Kubernetes would reject during an upgrade. */}}
{{- define "job.checkClaim" -}}
{{- $name := .there.metadata.name -}}
{{- $cure := "it cannot be changed: restore the value, or create another claim, stop the job, copy the checkpoint, and set checkpoint.existingClaim" -}}
{{- if ne (join "," .there.spec.accessModes) .storage.accessMode -}}
{{- fail (printf "checkpoint.storage.accessMode of claim %s is %s, got %s; %s" $name (join "," .there.spec.accessModes) .storage.accessMode $cure) -}}
{{- end -}}
{{- if and .storage.className (ne (default "" .there.spec.storageClassName) .storage.className) -}}
{{- fail (printf "checkpoint.storage.className of claim %s is %q, got %q; %s" $name (default "" .there.spec.storageClassName) .storage.className $cure) -}}
{{- end -}}
{{- end -}}
