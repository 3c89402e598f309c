{{/* Names and labels, each in one place. */}}
{{- define "penstock.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimAll "-" -}}
{{- end -}}

{{/* Services have this name too: no dot in it, and no digit first. */}}
{{- define "penstock.fullname" -}}
{{- $name := default (.Release.Name | replace "." "-") .Values.fullnameOverride -}}
{{- regexReplaceAll "^([0-9])" $name "penstock-${1}" | trunc 40 | trimAll "-" -}}
{{- end -}}

{{- define "penstock.clusterName" -}}
{{- default (include "penstock.fullname" .) .Values.cluster.name -}}
{{- end -}}

{{- define "penstock.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (printf "%s-operator" (include "penstock.fullname" .)) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* Of (dict "root" $ "component" "operator"): what selects pods. Never changes, as selectors cannot.
     Quoted, here and wherever a name stands, as a name may look like a number or a truth value. */}}
{{- define "penstock.selector" -}}
app.kubernetes.io/name: {{ include "penstock.name" .root | quote }}
app.kubernetes.io/instance: {{ .root.Release.Name | quote }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "penstock.labels" -}}
{{ include "penstock.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "penstock.operatorImage" -}}
{{- printf "%s:%s" .Values.operator.image.repository (default .Chart.AppVersion .Values.operator.image.tag) -}}
{{- end -}}

{{- define "penstock.brokerImage" -}}
{{- printf "%s:%s" .Values.broker.image.repository (default .Chart.AppVersion .Values.broker.image.tag) -}}
{{- end -}}

{{- define "penstock.etcdImage" -}}
{{- printf "%s:%s" .Values.etcd.image.repository .Values.etcd.image.tag -}}
{{- end -}}

{{/* What the restricted profile of Pod Security asks for, of pods and of containers. */}}
{{- define "penstock.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "penstock.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{/* Of (dict "root" $ "component" "etcd"): apart from each other where possible. */}}
{{- define "penstock.apart" -}}
podAntiAffinity:
  preferredDuringSchedulingIgnoredDuringExecution:
    {{- range $weight, $key := dict "100" "kubernetes.io/hostname" "50" "topology.kubernetes.io/zone" }}
    - weight: {{ $weight }}
      podAffinityTerm:
        topologyKey: {{ $key }}
        labelSelector:
          matchLabels:
            {{- include "penstock.selector" $ | nindent 12 }}
    {{- end }}
{{- end -}}

{{/* The scheme of the companion's own listeners, and its members. */}}
{{- define "penstock.etcdScheme" -}}
{{- if .Values.etcd.companion.tlsSecret }}https{{ else }}http{{ end -}}
{{- end -}}

{{- define "penstock.etcdEndpoints" -}}
{{- if eq .Values.etcd.mode "external" -}}
{{- toJson .Values.etcd.external.endpoints -}}
{{- else -}}
{{- $name := printf "%s-etcd" (include "penstock.fullname" .) -}}
{{- $endpoints := list -}}
{{- range $i := until (int .Values.etcd.companion.replicas) -}}
{{- $endpoints = append $endpoints (printf "%s://%s-%d.%s.svc:2379" (include "penstock.etcdScheme" $) $name $i $.Release.Namespace) -}}
{{- end -}}
{{- toJson $endpoints -}}
{{- end -}}
{{- end -}}

{{/* Of (dict "path" "" "value" .Values): fails for a number that Helm has not kept. It reads those of a values file as
     64-bit floats, in which whole numbers from 2^53 on lose digits. */}}
{{- define "penstock.checkNumbers" -}}
{{- $path := .path -}}
{{- if kindIs "map" .value -}}
{{- range $key, $value := .value -}}
{{- include "penstock.checkNumbers" (dict "path" (trimPrefix "." (printf "%s.%s" $path $key)) "value" $value) -}}
{{- end -}}
{{- else if kindIs "slice" .value -}}
{{- range $index, $value := .value -}}
{{- include "penstock.checkNumbers" (dict "path" (printf "%s[%d]" $path $index) "value" $value) -}}
{{- end -}}
{{- else if kindIs "float64" .value -}}
{{- if or (ge .value 9007199254740992.0) (le .value -9007199254740992.0) -}}
{{- fail (printf "%s: a number of about %s cannot be kept exactly, as Helm reads numbers as 64-bit floats; write it in quotes, such as \"9223372036854775807\"" $path (toJson .value)) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* What the values' schema cannot say; every render comes by here. */}}
{{- define "penstock.check" -}}
{{- $values := .Values -}}
{{- include "penstock.checkNumbers" (dict "path" "" "value" .Values) -}}
{{- if and (eq $values.etcd.mode "external") (empty $values.etcd.external.endpoints) $values.cluster.enabled -}}
{{- fail "etcd.mode=external needs etcd.external.endpoints, such as [http://etcd.example.com:2379]" -}}
{{- end -}}
{{- if and (eq $values.etcd.mode "companion") $values.etcd.companion.tlsSecret (empty $values.etcd.tls.clientSecret) -}}
{{- fail "etcd.companion.tlsSecret makes etcd ask for client certificates: etcd.tls.clientSecret has to name the brokers'" -}}
{{- end -}}
{{- if and (eq $values.etcd.mode "companion") $values.etcd.tls.clientSecret (empty $values.etcd.companion.tlsSecret) -}}
{{- fail "etcd.tls.clientSecret is set, but the companion etcd has no certificates: set etcd.companion.tlsSecret too" -}}
{{- end -}}
{{- if and (eq $values.etcd.mode "sidecar") $values.cluster.enabled (eq (int $values.cluster.brokers.replicas) 2) -}}
{{- fail "etcd.mode=sidecar needs 1 broker or at least 3: cluster.brokers.replicas is 2, and two members of etcd are worse than one" -}}
{{- end -}}
{{- if eq $values.etcd.mode "companion" -}}
{{- $name := printf "%s-etcd" (include "penstock.fullname" .) -}}
{{- with lookup "apps/v1" "StatefulSet" .Release.Namespace $name -}}
{{- include "penstock.checkEtcd" (dict "root" $ "name" $name "there" .) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Of (dict "root" $ "name" NAME "there" STATEFULSET): what an upgrade would change about the companion etcd that it
     would not survive, or that Kubernetes refuses. */}}
{{- define "penstock.checkEtcd" -}}
{{- $companion := .root.Values.etcd.companion -}}
{{- $name := .name -}}
{{- if ne (int .there.spec.replicas) (int $companion.replicas) -}}
{{- fail (printf "etcd.companion.replicas is fixed at the first install: there are %d, %d are asked for" (int .there.spec.replicas) (int $companion.replicas)) -}}
{{- end -}}
{{- $other := ternary "http" "https" (eq (include "penstock.etcdScheme" .root) "https") -}}
{{- range .there.spec.template.spec.containers -}}
{{- if has (printf "--listen-peer-urls=%s://0.0.0.0:2380" $other) (default list .args) -}}
{{- fail (printf "TLS of the companion etcd is fixed at the first install: its members know each other by %s:// for good. Set etcd.companion.tlsSecret and etcd.tls.clientSecret back, or install another release" $other) -}}
{{- end -}}
{{- end -}}
{{- range .there.spec.volumeClaimTemplates -}}
{{- if ne (default "" .spec.storageClassName) (default "" $companion.storage.className) -}}
{{- fail (printf "etcd.companion.storage.className is fixed at the first install: it is %q, and %q is asked for" (default "" .spec.storageClassName) (default "" $companion.storage.className)) -}}
{{- end -}}
{{- $size := .spec.resources.requests.storage -}}
{{- if ne (include "penstock.bytes" $size) (include "penstock.bytes" $companion.storage.size) -}}
{{- fail (printf "the companion etcd has volumes of %s, %s are asked for, and Kubernetes changes no claims of a StatefulSet. To grow them, set the size of each claim (kubectl patch pvc data-%s-0 --patch '{\"spec\":{\"resources\":{\"requests\":{\"storage\":\"%s\"}}}}', and so on), then kubectl delete statefulset %s --cascade=orphan, which leaves the pods alone, and upgrade again" $size $companion.storage.size $name $companion.storage.size $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* How much a size is, as text to compare: the API server says 1.5Gi as 1536Mi. */}}
{{- define "penstock.bytes" -}}
{{- $units := dict "m" 0.001 "k" 1000 "M" 1e6 "G" 1e9 "T" 1e12 "P" 1e15 "E" 1e18 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 "Pi" 1125899906842624 "Ei" 1152921504606846976 -}}
{{- mulf (regexFind "^[0-9.]+" .) (default 1 (get $units (regexFind "[a-zA-Z]+$" .))) -}}
{{- end -}}
