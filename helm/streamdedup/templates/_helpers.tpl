{{/* Names. A StatefulSet's name plus a hash must fit a label of 63 characters. */}}
{{- define "streamdedup.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- define "streamdedup.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else if contains (include "streamdedup.name" .) .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "streamdedup.name" .) | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "streamdedup.serviceAccountName" -}}
{{- .Values.serviceAccount.name | default (ternary (include "streamdedup.fullname" .) "default" .Values.serviceAccount.create) -}}
{{- end -}}

{{/* "true" with mode split, else empty. */}}
{{- define "streamdedup.isSplit" -}}
{{- if eq (dig "mode" "single" .Values.config) "split" -}}true{{- end -}}
{{- end -}}

{{/* Topics of mode split, with the defaults of the settings. */}}
{{- define "streamdedup.sketchesTopic" -}}
{{ .Values.config.topics.sketches | default "documents-sketches" }}
{{- end -}}
{{- define "streamdedup.verdictsTopic" -}}
{{ .Values.config.topics.verdicts | default "documents-verdicts" }}
{{- end -}}

{{/* Name of the objects of the edges. */}}
{{- define "streamdedup.edgeName" -}}
{{ include "streamdedup.fullname" . }}-edge
{{- end -}}

{{/* Labels that identify this release's objects; immutable in a StatefulSet. */}}
{{- define "streamdedup.releaseLabels" -}}
app.kubernetes.io/name: {{ include "streamdedup.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "streamdedup.workerLabels" -}}
{{ include "streamdedup.releaseLabels" . }}
app.kubernetes.io/component: worker
{{- end -}}

{{- define "streamdedup.edgeLabels" -}}
{{ include "streamdedup.releaseLabels" . }}
app.kubernetes.io/component: edge
{{- end -}}

{{/* Selector of all pods that serve metrics, as YAML. */}}
{{- define "streamdedup.podSelector" -}}
{{- if include "streamdedup.isSplit" . -}}
matchLabels:
  {{- include "streamdedup.releaseLabels" . | nindent 2 }}
matchExpressions:
  - key: app.kubernetes.io/component
    operator: In
    values: [worker, edge]
{{- else -}}
matchLabels:
  {{- include "streamdedup.workerLabels" . | nindent 2 }}
{{- end -}}
{{- end -}}

{{- define "streamdedup.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{ include "streamdedup.releaseLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{- define "streamdedup.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}
{{- end -}}
{{- end -}}
{{- end -}}

{{/*
Name of the secret with the seed; empty if the seed is not secret. A release that was installed
without one stays without one: its index and its changelog have the seed of its settings.
*/}}
{{- define "streamdedup.seedSecret" -}}
{{- $dedup := default dict .Values.config.dedup -}}
{{- if and .Values.seed.enabled (not (hasKey $dedup "seed")) (not (hasKey $dedup "seed_file")) -}}
{{- $ours := printf "%s-seed" (include "streamdedup.fullname" .) -}}
{{- if .Values.seed.existingSecret -}}
{{- .Values.seed.existingSecret -}}
{{- else if or .Release.IsInstall (lookup "v1" "Secret" .Release.Namespace $ours) -}}
{{- $ours -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The settings file: config from the values, overridden by paths and ports of the chart. */}}
{{- define "streamdedup.config" -}}
{{- $security := dict -}}
{{- with .Values.credentials -}}
{{- if .sasl.existingSecret -}}
{{- $_ := set $security "sasl_password_file" "/etc/streamdedup/sasl/password" -}}
{{- end -}}
{{- if .ca.existingSecret -}}
{{- $_ := set $security "ca_file" "/etc/streamdedup/ca/ca.crt" -}}
{{- end -}}
{{- if .certificate.existingSecret -}}
{{- $_ := set $security "certificate_file" "/etc/streamdedup/certificate/tls.crt" -}}
{{- $_ := set $security "key_file" "/etc/streamdedup/certificate/tls.key" -}}
{{- if .certificate.passwordKey -}}
{{- $_ := set $security "key_password_file" "/etc/streamdedup/certificate/password" -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $index := dict "directory" "/data/index" -}}
{{- if not (or .Values.persistence.enabled (dig "index" "disk_budget" "" .Values.config)) -}}
{{- /* Kubernetes evicts a pod whose emptyDir exceeds its limit; the worker stops earlier. */ -}}
{{- $_ := set $index "disk_budget" .Values.persistence.size -}}
{{- end -}}
{{- $ours := dict "index" $index "status" (dict "port" 9464) -}}
{{- if gt (int .Values.replicas) 1 -}}
{{- $_ := set $ours "standby" (dict "enabled" true) -}}
{{- end -}}
{{- if $security -}}
{{- $_ := set $ours "kafka" (dict "security" $security) -}}
{{- end -}}
{{- if include "streamdedup.seedSecret" . -}}
{{- $_ := set $ours "dedup" (dict "seed_file" "/etc/streamdedup/seed/seed") -}}
{{- end -}}
{{- toYaml (mergeOverwrite (deepCopy .Values.config) $ours) -}}
{{- end -}}

{{/* Whole seconds of a duration setting: a number, 500ms, 1h30m, 1d. */}}
{{- define "streamdedup.seconds" -}}
{{- $text := toString . | nospace -}}
{{- if regexMatch "^[0-9.]+$" $text -}}
{{- $text = printf "%ss" $text -}}
{{- end -}}
{{- $start := toDate "2006-01-02" "2000-01-01" -}}
{{- $end := mustDateModify (regexReplaceAll "^1d$" $text "24h") $start -}}
{{- sub (unixEpoch $end | int64) (unixEpoch $start | int64) -}}
{{- end -}}

{{/* Environment of the container, as a YAML list; empty if there is none. */}}
{{- define "streamdedup.env" -}}
{{- $env := list -}}
{{- with .Values.credentials.sasl -}}
{{- if and .existingSecret .usernameKey -}}
{{- $reference := dict "name" .existingSecret "key" .usernameKey -}}
{{- $env = append $env (dict "name" "STREAMDEDUP_KAFKA__SECURITY__SASL_USERNAME" "valueFrom" (dict "secretKeyRef" $reference)) -}}
{{- end -}}
{{- end -}}
{{- with concat $env .Values.extraEnv -}}
{{- toYaml . -}}
{{- end -}}
{{- end -}}

{{/* Mounts of every container of the pod. */}}
{{- define "streamdedup.volumeMounts" -}}
- name: tmp
  mountPath: /tmp
- name: settings
  mountPath: /etc/streamdedup/settings
  readOnly: true
{{- if include "streamdedup.seedSecret" . }}
- name: seed
  mountPath: /etc/streamdedup/seed
  readOnly: true
{{- end }}
{{- range $name, $source := .Values.credentials }}
{{- if $source.existingSecret }}
- name: {{ $name }}
  mountPath: /etc/streamdedup/{{ $name }}
  readOnly: true
{{- end }}
{{- end }}
{{- end -}}

{{/* Affinity of the pod, as YAML; empty if there is none. One node must not stop both workers. */}}
{{- define "streamdedup.affinity" -}}
{{- if .Values.affinity -}}
{{- toYaml .Values.affinity -}}
{{- else if gt (int .Values.replicas) 1 -}}
podAntiAffinity:
  preferredDuringSchedulingIgnoredDuringExecution:
    - weight: 100
      podAffinityTerm:
        topologyKey: kubernetes.io/hostname
        labelSelector:
          matchLabels:
            {{- include "streamdedup.workerLabels" . | nindent 12 }}
{{- end -}}
{{- end -}}

{{/* Ports of the brokers, as a JSON list; default: those of the bootstrap servers. */}}
{{- define "streamdedup.brokerPorts" -}}
{{- $ports := .Values.networkPolicy.brokers.ports -}}
{{- if not $ports -}}
{{- range .Values.config.kafka.bootstrap_servers -}}
{{- $ports = append $ports (regexFind "[0-9]+$" . | int) -}}
{{- end -}}
{{- end -}}
{{- toJson (uniq $ports) -}}
{{- end -}}

{{/* Refuses invalid values that the schema cannot express. */}}
{{- define "streamdedup.check" -}}
{{- $protocol := dig "security" "protocol" "PLAINTEXT" .Values.config.kafka -}}
{{- with .Values.credentials -}}
{{- if and .sasl.existingSecret (not (hasPrefix "SASL_" $protocol)) -}}
{{- fail (printf "credentials.sasl is set, but config.kafka.security.protocol is %s: use SASL_SSL" $protocol) -}}
{{- end -}}
{{- if and (or .ca.existingSecret .certificate.existingSecret) (not (hasSuffix "SSL" $protocol)) -}}
{{- fail (printf "credentials.ca or .certificate is set, but config.kafka.security.protocol is %s: use SSL or SASL_SSL" $protocol) -}}
{{- end -}}
{{- end -}}
{{- $dedup := default dict .Values.config.dedup -}}
{{- if and .Values.seed.existingSecret (or (hasKey $dedup "seed") (hasKey $dedup "seed_file")) -}}
{{- fail "seed.existingSecret and config.dedup.seed or .seed_file are both set: remove one" -}}
{{- end -}}
{{- $network := "(?i)(^|[-_.])(nfs[0-9]?|efs|cephfs|glusterfs|azurefile|filestore|smb|cifs|juicefs)([-_.]|$)" -}}
{{- if regexMatch $network .Values.persistence.storageClass -}}
{{- fail (printf "persistence.storageClass %q names a network file system, on which LMDB does not work: use a local disk or a block device" .Values.persistence.storageClass) -}}
{{- end -}}
{{- if and (gt (int .Values.replicas) 1) (eq (dig "standby" "enabled" true .Values.config) false) -}}
{{- fail "config.standby.enabled is false, but replicas is 2: remove it, or set replicas to 1" -}}
{{- end -}}
{{- /* A worker and edges must never run at the same time. Without a cluster, lookup finds nothing. */ -}}
{{- $existing := lookup "apps/v1" "StatefulSet" .Release.Namespace (include "streamdedup.fullname" .) -}}
{{- if and $existing (gt (int (dig "status" "replicas" 0 $existing)) 0) -}}
{{- $container := first $existing.spec.template.spec.containers -}}
{{- if ne (has "judge" $container.args) (eq (include "streamdedup.isSplit" .) "true") -}}
{{- fail "config.mode changes, but pods of the other mode run: upgrade with the old mode and replicas 0, and wait until no pod is left" -}}
{{- end -}}
{{- end -}}
{{- with .Values.edge -}}
{{- if and .autoscaling.enabled .keda.enabled -}}
{{- fail "edge.autoscaling.enabled and edge.keda.enabled are both true: set one of them to false" -}}
{{- end -}}
{{- range $name := list "autoscaling" "keda" -}}
{{- with get $.Values.edge $name -}}
{{- if and .enabled (gt (int .minReplicas) (int .maxReplicas)) -}}
{{- fail (printf "edge.%s.minReplicas is %d, above maxReplicas %d: raise maxReplicas" $name (int .minReplicas) (int .maxReplicas)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $ours := dict "STREAMDEDUP_MODE" "set config.mode; its pods differ" "STREAMDEDUP_STANDBY__ENABLED" "the chart sets it with replicas 2; else set config.standby.enabled" "STREAMDEDUP_INDEX__DIRECTORY" "the volume is mounted there" "STREAMDEDUP_STATUS__PORT" "the probes use 9464" "STREAMDEDUP_DRAIN_BUDGET" "set config.drain_budget; the grace period is computed from it" -}}
{{- range $variable := .Values.extraEnv -}}
{{- with get $ours (upper $variable.name) -}}
{{- fail (printf "extraEnv must not set %s: %s" $variable.name .) -}}
{{- end -}}
{{- end -}}
{{- if and (or .Values.strimzi.topics.enabled .Values.strimzi.user.enabled) (not .Values.strimzi.cluster) -}}
{{- fail "strimzi.cluster is empty: set it to the Kafka cluster of the topics and the user" -}}
{{- end -}}
{{- end -}}
