{{/* What the operator does in a namespace that it watches. */}}
{{- define "penstock.rules" -}}
# Its own kinds. Groups that it discovers are shown as objects that it makes; topics are created as a dry run only, which
# tells whether the namespace or the CRD is going.
- apiGroups: [penstock.io]
  resources: [clusters, topics, consumergroups]
  verbs: [get, list, watch]
- apiGroups: [penstock.io]
  resources: [topics]
  verbs: [create]
- apiGroups: [penstock.io]
  resources: [consumergroups]
  verbs: [create, patch, delete]
- apiGroups: [penstock.io]
  resources: [clusters/status, topics/status, consumergroups/status]
  verbs: [patch]
# Owner references with blockOwnerDeletion, where the API server is strict about them.
- apiGroups: [penstock.io]
  resources: [clusters/finalizers]
  verbs: [update]
# What a Cluster is made of.
- apiGroups: [apps]
  resources: [statefulsets]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [services, configmaps]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch, delete]
# Pods are deleted to roll them; claims grow, and are never deleted.
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, delete]
- apiGroups: [""]
  resources: [persistentvolumeclaims]
  verbs: [get, list, watch, patch]
- apiGroups: ["", events.k8s.io]
  resources: [events]
  verbs: [create, patch]
{{- end -}}
