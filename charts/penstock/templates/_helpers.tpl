{{/* Names and labels. */}}
{{- define "penstock.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimAll "-" -}}
{{- end -}}

{{/* Also a Service name: no dots, no leading digit. */}}
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

{{/* Input (dict "root" $ "component" "operator"): the selector labels of pods, which are immutable.
     Names are quoted everywhere, because YAML could parse them as numbers or booleans. */}}
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

{{/* Security contexts of pods and containers for the restricted Pod Security profile. */}}
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

{{/* Input (dict "root" $ "component" "etcd"): preferred anti-affinity by node and zone. */}}
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

{{/* Secret of the companion's certificate, "" without TLS. Without `tlsSecret`, the operator issues it, unless the
     companion has been installed in plain text: TLS is fixed at the first install. */}}
{{- define "penstock.etcdSecret" -}}
{{- $companion := .Values.etcd.companion -}}
{{- $name := printf "%s-etcd" (include "penstock.fullname" .) -}}
{{- $there := lookup "apps/v1" "StatefulSet" .Release.Namespace $name -}}
{{- if $companion.tlsSecret -}}
{{- $companion.tlsSecret -}}
{{- else if and .Values.cluster.enabled (include "penstock.listeners" . | fromJsonArray) (not $companion.allowPlaintext) -}}
{{- if not (contains "--listen-peer-urls=http://" (toJson (default dict $there.spec))) -}}
{{- printf "%s-tls" $name -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Scheme of the companion's listeners. */}}
{{- define "penstock.etcdScheme" -}}
{{- if include "penstock.etcdSecret" . }}https{{ else }}http{{ end -}}
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

{{/* Input (dict "path" "" "value" .Values): fails for a number that Helm may have rounded. Helm parses numbers of a values
     file as 64-bit floats, which cannot represent all integers from 2^53 on. */}}
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
{{- fail (printf "%s: a number of about %s loses precision, because Helm parses numbers as 64-bit floats; quote it, such as \"9223372036854775807\"" $path (toJson .value)) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The Cluster's listeners, as a JSON array: none with plain text. */}}
{{- define "penstock.listeners" -}}
{{- $cluster := .Values.cluster -}}
{{- if or $cluster.listeners $cluster.allowPlaintext -}}
{{- toJson $cluster.listeners -}}
{{- else -}}
{{- toJson (list (dict "name" "clients" "port" 9093)) -}}
{{- end -}}
{{- end -}}

{{/* The broker settings as YAML, all as text. With listeners, an authorizer; `config` can replace it. */}}
{{- define "penstock.config" -}}
{{- $found := dict -}}
{{- if include "penstock.listeners" . | fromJsonArray -}}
{{- $_ := set $found "authorizer.class.name" "StandardAuthorizer" -}}
{{- end -}}
{{- range $name, $value := .Values.cluster.config -}}
{{- $_ := set $found $name (kindIs "float64" $value | ternary ($value | toJson) ($value | toString)) -}}
{{- end -}}
{{- toYaml $found -}}
{{- end -}}

{{/* The first listener for clients inside the Kubernetes cluster with passwords, as JSON; {} without one. */}}
{{- define "penstock.passwordListener" -}}
{{- $found := dict -}}
{{- range include "penstock.listeners" . | fromJsonArray -}}
{{- if and (empty $found) (eq (default "internal" .type) "internal") (eq (default "scram" .authentication) "scram") -}}
{{- $found = . -}}
{{- end -}}
{{- end -}}
{{- toJson $found -}}
{{- end -}}

{{/* Checks that the values schema cannot express; called by every render. */}}
{{- define "penstock.check" -}}
{{- $values := .Values -}}
{{- include "penstock.checkNumbers" (dict "path" "" "value" .Values) -}}
{{- if and (eq $values.etcd.mode "external") (empty $values.etcd.external.endpoints) $values.cluster.enabled -}}
{{- fail "etcd.mode=external requires etcd.external.endpoints, such as [http://etcd.example.com:2379]" -}}
{{- end -}}
{{- if and (eq $values.etcd.mode "companion") $values.etcd.companion.tlsSecret (empty $values.etcd.tls.clientSecret) -}}
{{- fail "etcd.companion.tlsSecret makes etcd require client certificates: set etcd.tls.clientSecret for the brokers" -}}
{{- end -}}
{{- if and (eq $values.etcd.mode "companion") $values.etcd.tls.clientSecret (empty $values.etcd.companion.tlsSecret) -}}
{{- fail "etcd.tls.clientSecret is set, but the companion etcd has no certificate: set etcd.companion.tlsSecret, too" -}}
{{- end -}}
{{- if and (eq $values.etcd.mode "sidecar") $values.etcd.snapshots -}}
{{- fail "etcd.snapshots cannot be combined with etcd.mode=sidecar: remove it, or use another mode" -}}
{{- end -}}
{{- if and $values.etcd.restore (or (ne $values.etcd.mode "companion") (empty $values.etcd.snapshots)) -}}
{{- fail "etcd.restore requires etcd.mode=companion and etcd.snapshots: the operator restores a snapshot that it has stored" -}}
{{- end -}}
{{- if and (eq $values.etcd.mode "sidecar") $values.cluster.enabled (eq (int $values.cluster.brokers.replicas) 2) -}}
{{- fail "etcd.mode=sidecar requires 1 or at least 3 brokers: cluster.brokers.replicas is 2, and two etcd members do not tolerate a failure" -}}
{{- end -}}
{{- if and $values.cluster.listeners $values.cluster.external -}}
{{- fail "cluster.external cannot be combined with cluster.listeners: add a listener of type nodeport, loadbalancer or tlsroute instead" -}}
{{- end -}}
{{- if and $values.cluster.enabled (not $values.cluster.allowPlaintext) -}}
{{- include "penstock.checkSecured" . -}}
{{- end -}}
{{- include "penstock.checkClusterName" . -}}
{{- $name := printf "%s-etcd" (include "penstock.fullname" .) -}}
{{- with lookup "apps/v1" "StatefulSet" .Release.Namespace $name -}}
{{- if ne $values.etcd.mode "companion" -}}
{{- fail (printf "etcd.mode is fixed at the first install: the companion etcd %s has the metadata of the cluster, whose brokers would not start with another etcd; restore etcd.mode=companion, or install another release" $name) -}}
{{- end -}}
{{- include "penstock.checkEtcd" (dict "root" $ "name" $name "there" .) -}}
{{- end -}}
{{- end -}}

{{/* Fails if the release has a Cluster of another name: helm would delete it, and the new one would start empty. */}}
{{- define "penstock.checkClusterName" -}}
{{- $name := include "penstock.clusterName" . -}}
{{- if and .Values.cluster.enabled (.Capabilities.APIVersions.Has "penstock.io/v1beta1/Cluster") -}}
{{- range (lookup "penstock.io/v1beta1" "Cluster" .Release.Namespace "").items -}}
{{- $labels := default dict .metadata.labels -}}
{{- $isOurs := and (eq (default "" (get $labels "app.kubernetes.io/instance")) $.Release.Name) (eq (default "" (get $labels "app.kubernetes.io/managed-by")) $.Release.Service) -}}
{{- if and $isOurs (ne .metadata.name $name) -}}
{{- fail (printf "the name of the Cluster is fixed at the first install: it is %q, got %q, which would start without the data of the other; restore cluster.name and fullnameOverride, or install another release" .metadata.name $name) -}}
{{- end -}}
{{- $etcd := dig "etcd" "statefulSet" "" .spec -}}
{{- $companion := printf "%s-etcd" (include "penstock.fullname" $) -}}
{{- if and $isOurs $etcd (ne $etcd $companion) -}}
{{- fail (printf "the name of the companion etcd is fixed at the first install: it is %q, got %q, which would start without the metadata of the cluster; restore fullnameOverride, or install another release" $etcd $companion) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Fails for values that open the cluster to everyone, and for an upgrade that would disconnect clients in plain text. */}}
{{- define "penstock.checkSecured" -}}
{{- $cluster := .Values.cluster -}}
{{- $allow := "set cluster.allowPlaintext=true to allow it" -}}
{{- if $cluster.external -}}
{{- fail (printf "cluster.external is in plain text: add a listener of type nodeport, loadbalancer or tlsroute to cluster.listeners instead, or %s" $allow) -}}
{{- end -}}
{{- range $cluster.listeners -}}
{{- if not (dig "tls" true .) -}}
{{- fail (printf "listener %q has tls: false: connections would be in plain text; %s" .name $allow) -}}
{{- end -}}
{{- if eq (default "scram" .authentication) "none" -}}
{{- fail (printf "listener %q has authentication: none: everybody who can connect could use it; %s" .name $allow) -}}
{{- end -}}
{{- end -}}
{{- /* `lookup` fails if the kind does not exist, as before the first install. */ -}}
{{- if .Capabilities.APIVersions.Has "penstock.io/v1beta1/Cluster" -}}
{{- with lookup "penstock.io/v1beta1" "Cluster" .Release.Namespace (include "penstock.clusterName" .) -}}
{{- if and (empty .spec.listeners) (empty $cluster.listeners) -}}
{{- fail (printf "Cluster %q has no listeners, so its clients connect in plain text, and an upgrade to the secured default would disconnect them: set cluster.allowPlaintext=true to keep plain text, or cluster.listeners=[{name: clients, port: 9093}] to secure it" .metadata.name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Input (dict "root" $ "name" NAME "there" STATEFULSET): fails for changes of the companion etcd that would break it or
     that Kubernetes rejects. */}}
{{- define "penstock.checkEtcd" -}}
{{- $companion := .root.Values.etcd.companion -}}
{{- $name := .name -}}
{{- $members := int .there.spec.replicas -}}
{{- if and (not .root.Values.cluster.enabled) (ne $members (int $companion.replicas)) -}}
{{- fail (printf "etcd.companion.replicas cannot change from %d to %d with cluster.enabled=false: the operator changes the members of a Cluster only; restore the value" $members (int $companion.replicas)) -}}
{{- end -}}
{{- $other := ternary "http" "https" (eq (include "penstock.etcdScheme" .root) "https") -}}
{{- range .there.spec.template.spec.containers -}}
{{- if has (printf "--listen-peer-urls=%s://0.0.0.0:2380" $other) (default list .args) -}}
{{- fail (printf "TLS of the companion etcd is fixed at the first install: its members use %s://; restore etcd.companion.tlsSecret and etcd.tls.clientSecret, or the listeners, or install another release" $other) -}}
{{- end -}}
{{- end -}}
{{- $secret := include "penstock.etcdSecret" .root -}}
{{- range .there.spec.template.spec.volumes -}}
{{- if and (eq .name "tls") (not $companion.tlsSecret) $secret (ne .secret.secretName $secret) -}}
{{- fail (printf "TLS of the companion etcd is fixed at the first install: its members use the certificate in Secret %s; restore etcd.companion.tlsSecret and etcd.tls.clientSecret" .secret.secretName) -}}
{{- end -}}
{{- end -}}
{{- range .there.spec.volumeClaimTemplates -}}
{{- if ne (default "" .spec.storageClassName) (default "" $companion.storage.className) -}}
{{- fail (printf "etcd.companion.storage.className is fixed at the first install: it is %q, got %q; restore the value" (default "" .spec.storageClassName) (default "" $companion.storage.className)) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Replicas of the companion's StatefulSet: as many as there are, because the operator adds and removes the members one
     at a time. Without replicas, hibernation or a restore has stopped them, and the operator starts them again. */}}
{{- define "penstock.etcdReplicas" -}}
{{- $there := lookup "apps/v1" "StatefulSet" .Release.Namespace (printf "%s-etcd" (include "penstock.fullname" .)) -}}
{{- default (int .Values.etcd.companion.replicas) (int (default dict $there.spec).replicas) -}}
{{- end -}}

{{/* Number of members that form the cluster: that of the first install. */}}
{{- define "penstock.etcdFirstMembers" -}}
{{- $found := int .Values.etcd.companion.replicas -}}
{{- with lookup "v1" "ConfigMap" .Release.Namespace (printf "%s-etcd-bootstrap" (include "penstock.fullname" .)) -}}
{{- $found = len (splitList "," .data.ETCD_INITIAL_CLUSTER) -}}
{{- end -}}
{{- $found -}}
{{- end -}}

{{/* Size in the claim template of the companion: that of the first install, because Kubernetes does not change the claim
     templates of a StatefulSet. The operator expands the claims. */}}
{{- define "penstock.etcdClaimSize" -}}
{{- $there := lookup "apps/v1" "StatefulSet" .Release.Namespace (printf "%s-etcd" (include "penstock.fullname" .)) -}}
{{- $found := .Values.etcd.companion.storage.size -}}
{{- range (default dict $there.spec).volumeClaimTemplates -}}
{{- $found = .spec.resources.requests.storage -}}
{{- end -}}
{{- $found -}}
{{- end -}}
