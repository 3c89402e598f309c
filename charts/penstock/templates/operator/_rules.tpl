{{/* Permissions of the operator in a watched namespace. */}}
{{- define "penstock.rules" -}}
# The custom resources. The operator creates ConsumerGroups for discovered groups. It creates Topics and Users only as a
# dry run, to check whether the namespace or the CRD is being deleted.
- apiGroups: [penstock.io]
  resources: [clusters, topics, consumergroups, users]
  verbs: [get, list, watch]
- apiGroups: [penstock.io]
  resources: [topics, users]
  verbs: [create]
- apiGroups: [penstock.io]
  resources: [consumergroups]
  verbs: [create, patch, delete]
- apiGroups: [penstock.io]
  resources: [clusters/status, topics/status, consumergroups/status, users/status]
  verbs: [patch]
# The objects of a Cluster. A StatefulSet is deleted with orphaned pods to expand volumes, a Service with its broker.
- apiGroups: [apps]
  resources: [statefulsets]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [services]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [configmaps]
  verbs: [get, list, watch, create, patch]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch]
# Pods are deleted to restart them, and created to take snapshots of etcd. Claims are expanded, and never deleted.
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, create, delete]
- apiGroups: [""]
  resources: [persistentvolumeclaims]
  verbs: [get, list, watch, patch]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, list, watch, create, patch, delete]
{{- if .Values.rbac.certManager }}
- apiGroups: [cert-manager.io]
  resources: [certificates]
  verbs: [get, create, patch]
{{- end }}
{{- if .Values.rbac.gatewayApi }}
- apiGroups: [gateway.networking.k8s.io]
  resources: [tlsroutes]
  verbs: [get, list, create, patch, delete]
{{- end }}
- apiGroups: [""]
  resources: [events]
  verbs: [list, create, patch]
{{- end -}}

{{/* Permissions on Secrets, always in a Role of one namespace. */}}
{{- define "penstock.secretRules" -}}
# The Secrets of Users and the certificates of Clusters: written, and read by name. Without list and watch, the
# operator cannot enumerate Secrets.
- apiGroups: [""]
  resources: [secrets]
  verbs: [get, create, patch]
{{- end -}}
